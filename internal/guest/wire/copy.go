package wire

// Copy tells the verb copy what to copy. It prints Copied as JSON on standard output, a
// line each time there is news and a last one with Done. Nobody waits for its exit.
type Copy struct {
	Jobs []CopyJob `json:"jobs"`
	// Layers is a directory with the layers of all containers. That of a job's FromMark or ToMark
	// is in the directory LayerName of the only entry in which that has a directory of this name,
	// and From or To is ignored. All others are put out of reach before the copy.
	Layers    string `json:"layers,omitempty"`
	LayerName string `json:"layerName,omitempty"`
	// Stream says that the trees come on standard input, as a tar archive in which names
	// begin with the number of their job. From is ignored then.
	Stream bool `json:"stream,omitempty"`
	// Send says that the trees go to standard output, as the archive of Stream, and after it SendEnd. There
	// is no Copied then, and To is ignored. Without SendEnd standard error says what failed.
	Send bool `json:"send,omitempty"`
	// Wait says to print Copied with Ready and to begin when a line comes on standard
	// input. The copy ends, and a hold with it, at the end of standard input, or when nothing has
	// come for HoldSilence: the caller sends a CopyBeat at least that often.
	Wait bool `json:"wait,omitempty"`
	// Hold says that the copy runs in the network namespace of the sandbox that it copies, and
	// that the sandbox's processes are to be held while it copies. Ready then comes with a
	// Challenge of PID 1's, and the line that follows is a Signed OpHold, or empty to copy
	// without a hold. If the hold is refused, Ready comes once more, with Unheld.
	Hold bool `json:"hold,omitempty"`
	// Linger says to print Copied with Lingers after the jobs, and to wait for another line
	// before the hold ends.
	Linger bool `json:"linger,omitempty"`
}

// SendEnd is the end of what a copy with Send writes.
const SendEnd = "\nAGENTSANDBOX.sent\n"

// CopyBeat is a line of the caller of a copy with Wait that says no more than that it lives.
const CopyBeat = "beat\n"

// Records of our own in such an archive.
const (
	// TreeEnd marks the second header of a directory, which has its attributes and comes
	// after all that is in it. The first one only makes it.
	TreeEnd = "AGENTSANDBOX.end"
	// TreeSparse is archive.SparseRecord of a file with holes. The contents are its pieces.
	TreeSparse = "AGENTSANDBOX.sparse"
	// TreeReplace marks what takes the place of a file that came before.
	TreeReplace = "AGENTSANDBOX.replace"
	// A tar header of a character device with the numbers 0, 0 is a whiteout of a Layer.

	// TreeXattr and a name is an extended attribute, as others write it, too.
	TreeXattr = "SCHILY.xattr."
)

// CopyJob is one tree: what is in directory From goes into directory To, which is
// empty, and To gets From's own mode, owner and times.
type CopyJob struct {
	From string `json:"from"`
	To   string `json:"to"`
	// FromMark and ToMark are for layers, see Copy.Layers.
	FromMark string `json:"fromMark,omitempty"`
	ToMark   string `json:"toMark,omitempty"`
	// Is says which directory From has to be. When it is another one nothing is copied
	// and the job is reported in Copied.Elsewhere. Without To that is all the job is for;
	// From is then of any type, and its owner does not count.
	Is *Identity `json:"is,omitempty"`
	// Owner is who everything belongs to in To; setuid and setgid bits are left out then.
	// Without one the owners stay.
	Owner *Owner `json:"owner,omitempty"`
	// Layer says that From is a container's own layer, on the engine's disk and not as the
	// container sees it. What marks that a file of the image is gone, or a directory's
	// contents, is copied like files, and attributes of that kind have to be taken. What is in
	// To is removed: directories that the engine mounts something on, which it makes again.
	Layer bool `json:"layer,omitempty"`
	// Root says that of From only its own mode, owner, times and extended attributes are
	// copied: To is an overlay over From.
	Root bool `json:"root,omitempty"`
	// Mounts are names in From that say nothing of whether a Layer holds anything: the
	// engine makes them, to mount something there.
	Mounts []string `json:"mounts,omitempty"`
	// Omit are names in From that are not copied, such as the place of the guest in the
	// container that the layer is from.
	Omit []string `json:"omit,omitempty"`
	// Check are paths of the container that a Layer is for; see Root.Plain.
	Check []PathCheck `json:"check,omitempty"`
	// Again says that To may have what an earlier copy left: it is removed first.
	Again bool `json:"again,omitempty"`
	// Sync is a directory whose file system is written out first. One that keeps what is
	// written to it for itself for a while would hold it back from From.
	Sync string `json:"sync,omitempty"`
}

// Owner is a user and a group.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
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
	// Losses are what was not copied as it was, in the last line only.
	Losses Losses `json:"losses,omitzero"`
	// Elsewhere are the jobs whose directory is not the one that was meant, and Boot the
	// boot ID that the copy saw; both in the last line only.
	Elsewhere []int  `json:"elsewhere,omitempty"`
	Boot      string `json:"boot,omitempty"`

	// Roots are what each job's From itself is, in the last line.
	Roots []Root `json:"roots,omitempty"`

	Ready bool `json:"ready,omitempty"`
	// Challenge and Unheld are for a copy with Hold, see there. Unheld says why the processes
	// can't be held.
	Challenge []byte `json:"challenge,omitempty"`
	Unheld    string `json:"unheld,omitempty"`
	// Lingers is for a copy with Linger.
	Lingers bool `json:"lingers,omitempty"`
	// Moved says, in the last line, what has run during the hold: the copy is of no single
	// moment.
	Moved string     `json:"moved,omitempty"`
	Done  bool       `json:"done,omitempty"`
	Error *CopyError `json:"error,omitempty"`
}

// Root is what a directory has beside its contents.
type Root struct {
	Mode  uint32 `json:"mode"` // permissions, setuid, setgid and sticky bit
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Mtime int64  `json:"mtime"` // in nanoseconds
	// Xattrs says that it is no Layer and has extended attributes.
	Xattrs bool `json:"xattrs,omitempty"`
	// Bare says that it is a Layer in which nothing was changed since it was made.
	Bare bool `json:"bare,omitempty"`
	// Plain says that the copied layer has at the job's Check paths only what may be there.
	Plain bool `json:"plain,omitempty"`
}

// Losses are files that a copy left out, such as sockets, and attributes that copies lack.
type Losses struct {
	Count int64  `json:"count,omitempty"`
	First []Loss `json:"first,omitempty"` // in bounds
	size  int
}

// A Loss is one file, and what of it was not copied.
type Loss struct {
	Job    int    `json:"job,omitempty"`
	Path   []byte `json:"path"`   // below the job's directory, which is ""
	Reason string `json:"reason"` // as in the reports of package archive
}

// Bounds of Losses.First.
const (
	maxLosses    = 1000
	maxLossBytes = 256 << 10
)

// Add counts a loss, and keeps it if there is room.
func (l *Losses) Add(job int, path, reason string) {
	l.Count++
	if l.size += len(path) + len(reason); len(l.First) < maxLosses && l.size <= maxLossBytes {
		l.First = append(l.First, Loss{job, []byte(path), reason})
	}
}

// CopyError says where and why a copy ended.
type CopyError struct {
	Job     int    `json:"job"`
	Path    []byte `json:"path,omitempty"` // below the job's From
	Message string `json:"message"`
	// Changed says that the source was being changed.
	Changed bool `json:"changed,omitempty"`
	// Denied says that the copy may not read the source.
	Denied bool `json:"denied,omitempty"`
	// NoLayer says that a layer was not found, or several. Nothing was copied.
	NoLayer bool `json:"noLayer,omitempty"`
}

func (e *CopyError) Error() string { return e.Message }

// Layer is what the verb layer prints, as one line.
type Layer struct {
	// Upper is the directory on the engine's machine in which an overlay has the helper's own
	// layer. It is empty if that is no overlay of the kernel's.
	Upper string `json:"upper,omitempty"`
}

// Sizes is what the verb du prints: the bytes of each directory, -1 where it could not
// see all of it.
type Sizes struct {
	Bytes []int64 `json:"bytes"`
}
