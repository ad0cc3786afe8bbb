source <(COMPLETE=bash vmlan)
