//! Guest memory: the map, checked copies, typed ring access.
