COMPLETE=fish vmlan | source
