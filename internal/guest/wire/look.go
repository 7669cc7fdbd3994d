package wire

// Look tells the verb look which paths to look at. It prints Looked as JSON, as one line.
type Look struct {
	Trees []LookTree `json:"trees"`
	// Layers and LayerName are as in Copy, for trees with a Mark.
	Layers    string `json:"layers,omitempty"`
	LayerName string `json:"layerName,omitempty"`
}

// LookTree is a directory: a container's own layer, or a volume, as no container sees it.
type LookTree struct {
	Dir   string      `json:"dir"`
	Mark  string      `json:"mark,omitempty"` // as CopyJob.FromMark; Dir is ignored then
	Paths []PathCheck `json:"paths"`
	// Replace has the new contents of account files that the engine must not open. Such a file is
	// renamed, and a regular one takes its place.
	Replace map[string]string `json:"replace,omitempty"`
	// Read are paths of regular files to return, if the tree has them.
	Read []string `json:"read,omitempty"`
}

// A PathCheck is an absolute path in a tree, and what may be there. On the way to it nothing but
// directories may be. Unless it is needed there may also be nothing.
type PathCheck struct {
	Name string   `json:"name"`
	Kind PathKind `json:"kind,omitempty"`
	// Needed says that something has to be there: the engine can't make the mount point.
	Needed bool `json:"needed,omitempty"`
}

// PathKind is what may be at the path of a PathCheck.
type PathKind string

// The kinds of paths.
const (
	KindPoint   PathKind = ""        // a mount point: a directory or a regular file
	KindAccount PathKind = "account" // a regular file that is no larger than an account file
	KindLink    PathKind = "link"    // nothing: the image has a symbolic link there
)

// The files that the engine opens, as its own user, at each start and exec of a container.
const (
	PasswdFile = "/etc/passwd"
	GroupFile  = "/etc/group"
)

// PointFiles returns the files of the engine's that it mounts in each container.
func PointFiles() []string { return []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} }

// EnginePaths returns what may be at the files that the engine opens or mounts.
func EnginePaths() []PathCheck {
	paths := []PathCheck{{Name: PasswdFile, Kind: KindAccount}, {Name: GroupFile, Kind: KindAccount}}
	for _, name := range PointFiles() {
		paths = append(paths, PathCheck{Name: name})
	}
	return paths
}

// Looked is what the verb look has seen.
type Looked struct {
	Wrong    []WrongPath       `json:"wrong,omitempty"`
	Replaced []WrongPath       `json:"replaced,omitempty"`
	Files    map[string][]byte `json:"files,omitempty"` // of LookTree.Read
	// NoLayer says why a layer was not found, or several. Nothing was looked at.
	NoLayer string `json:"noLayer,omitempty"`
}

// WrongPath is a path at which a tree has something that must not be there.
type WrongPath struct {
	Tree int    `json:"tree"`
	Name string `json:"name"` // up to the element that is wrong
	Is   string `json:"is"`   // for people: "a symbolic link"
}
