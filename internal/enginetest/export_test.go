package enginetest

var LockedUp = lockedUp
