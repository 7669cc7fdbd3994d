package policy

// Merge is merge.
var Merge = merge
