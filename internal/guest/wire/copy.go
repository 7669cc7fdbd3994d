package wire

// Copy tells the verb copy what to copy. It prints Copied as JSON on standard output, a
// line each time there is news and a last one with Done. Nobody waits for its exit.
type Copy struct {
	Jobs []CopyJob `json:"jobs"`
	// Workers copy at the same time; 0 is as many as there are CPUs, and at least 2.
	Workers int `json:"workers,omitempty"`
	// Stream says that the trees come on standard input, as a tar archive in which names
	// begin with the number of their job. From is of no account then.
	Stream bool `json:"stream,omitempty"`
}

// Records of our own in such an archive.
const (
	// TreeEnd marks the second header of a directory, which has its attributes and comes
	// after all that is in it. The first one only makes it.
	TreeEnd = "AGENTSANDBOX.end"
	// TreeSparse is a file's size and then offset and length of each part that is not a
	// hole, with spaces between. The contents are those parts.
	TreeSparse = "AGENTSANDBOX.sparse"
	// TreeXattr and a name is an extended attribute, as others write it, too.
	TreeXattr = "SCHILY.xattr."
)

// CopyJob is one tree: what is in directory From goes into directory To, which is
// empty, and To gets From's own mode, owner and times.
type CopyJob struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Is says which directory From has to be. When it is another one nothing is copied
	// and the job is reported in Copied.Elsewhere.
	Is *Identity `json:"is,omitempty"`
}

// Identity tells a directory from every other one, as long as no machine restarts.
type Identity struct {
	Boot string `json:"boot"` // boot ID of the kernel: other numbers mean nothing to another
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	// UID and GID are the owner. Where user namespaces shift them, a copy would get
	// other owners than the caller sees.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Copied is how far a copy has come.
type Copied struct {
	Files int64 `json:"files"` // everything that is no directory
	Dirs  int64 `json:"dirs"`
	Bytes int64 `json:"bytes"` // of contents; holes do not count
	// Skipped counts sockets and devices, and Names has the first of them.
	Skipped int64    `json:"skipped,omitempty"`
	Names   [][]byte `json:"names,omitempty"`
	// Xattrs counts extended attributes that the target did not take.
	Xattrs int64 `json:"xattrs,omitempty"`
	// Elsewhere are the jobs whose directory is not the one that was meant, and Boot the
	// boot ID that the copy saw; both in the last line only.
	Elsewhere []int  `json:"elsewhere,omitempty"`
	Boot      string `json:"boot,omitempty"`

	Done  bool       `json:"done,omitempty"`
	Error *CopyError `json:"error,omitempty"`
}

// MaxNames is how many names Copied.Names has at most.
const MaxNames = 10

// CopyError says where and why a copy ended.
type CopyError struct {
	Job     int    `json:"job"`
	Path    []byte `json:"path,omitempty"` // below the job's From
	Message string `json:"message"`
	// Changed says that the source was being changed.
	Changed bool `json:"changed,omitempty"`
}

func (e *CopyError) Error() string { return e.Message }

// Sizes is what the verb du prints: the bytes of each directory, -1 where it could not
// see all of it.
type Sizes struct {
	Bytes []int64 `json:"bytes"`
}
