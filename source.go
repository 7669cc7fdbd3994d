package sandbox

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
)

// A Source supplies the first files of a sandbox's workspace: [Git], [Tarball], [Dir] or
// [FromSnapshot]. String describes it without secrets.
type Source interface {
	fmt.Stringer
	source() source.Source
}

// WithSource fills the workspace of a new sandbox. All files are in place before the main
// process starts and [Create] returns; if the source fails, no sandbox is created.
// [GetOrCreate] ignores the source if the sandbox exists. At most one source may be
// given, and none for a workspace that [WithID] adopts. Default: the files that the image has at
// /workspace, most often none.
func WithSource(from Source) CreateOption {
	// The caller may change the value behind the pointer.
	switch given := from.(type) { // the caller may change what it points to
	case *Git:
		if from = nil; given != nil {
			from = *given
		}
	case *Tarball:
		if from = nil; given != nil {
			from = *given
		}
	}
	return option{apply: func(s *settings) {
		if from == nil {
			s.problem("WithSource: there is no source; omit the option for an empty workspace")
			return
		}
		if s.from != nil {
			s.problem("WithSource: a sandbox has one source, not both %v and %v", s.from, from)
		}
		s.from, s.Source, s.Snapshot = from, from.source(), ""
		if id, is := from.(fromSnapshot); is {
			if s.Snapshot = string(id); !record.ValidName(s.Snapshot) {
				s.problem("FromSnapshot: %q is not a snapshot's ID: use %s", s.Snapshot, record.NameRule)
			}
		}
	}}
}

// WithSourceAddresses bounds the servers that a [Git], a [Tarball] with a URL and an image to pull
// come from: to public addresses, as in [PublicOnly], and to the prefixes in also. Other servers are
// [ErrInvalidArgument], and no error says what address a name has. It is for programs that let their
// users choose the sources. Default: any server that this machine, and the engine's, can reach.
//
// This program's own connections are checked as they are made, whatever name, redirect or later
// answer of a DNS server leads there. Git gets the addresses that were checked and follows no
// redirect; before version 2.37, and by ssh, it looks the name up again. What a proxy of the
// environment connects to, and the engine for an image, is checked only as this machine resolves the
// name: by a DNS server of its own, or to redirects of the registry, the engine may still connect to
// others. The engine's default registry is not checked.
func WithSourceAddresses(also ...netip.Prefix) MakeOption {
	also = slices.Clone(also)
	return option{apply: func(s *settings) {
		for _, p := range also {
			if !p.IsValid() {
				s.problem("WithSourceAddresses: %v is not a prefix", p)
			}
		}
		s.From = &source.Bounds{Also: also}
	}}
}

// Dir is a [Source]: a copy of a directory of this machine, made when the sandbox is
// created. The rules of [RWCopy] apply, but all files belong to the sandbox's user and
// lose setuid and setgid bits. A relative path is made absolute when Dir is called.
//
// Git does not work in a copy of a worktree or a submodule, since the repository is elsewhere.
// [Progress] says so. [Git] with the directory as its URL clones what is committed.
func Dir(path string) Source { return directory{source.Dir(path)} }

type directory struct{ source.Source }

func (d directory) source() source.Source { return d.Source }

// FromSnapshot is a [Source]: all files of a snapshot, including those outside of the
// workspace. The snapshot determines the image, so [WithImage] and [WithRuntime] can't be
// combined with it; its user is the default of [WithUser]. Its copies of directories are
// mounted where they were, unless [WithMounts] uses the target.
//
// If the engine can mount overlays the new volumes share the snapshot's files: that takes
// milliseconds whatever the size. Otherwise the files are copied. If there is no
// such snapshot the error is [ErrSnapshotNotFound].
func FromSnapshot(id string) Source { return fromSnapshot(id) }

type fromSnapshot string

func (f fromSnapshot) String() string { return "snapshot " + string(f) }

func (f fromSnapshot) source() source.Source { return nil }

// Git is a [Source]: a clone of a repository, with its history and a remote called
// origin, owned by the sandbox's user. The git program of this machine clones it into a
// temporary directory, and this package copies that into the workspace; the image and the
// engine's machine need no git. The clone ignores the git configuration of this machine
// and its user, and runs none of their hooks, filters and credential helpers. It obeys
// safe.directory, for repositories of other users, and under sudo for repositories of sudo's caller.
// Files have the permissions of a umask of 022. Proxies and certificates are taken from the environment, as http_proxy
// and GIT_SSL_CERT name them. The temporary directory, agent-sandbox-git-… in [os.TempDir], is removed when the
// call ends, but not if this program dies during it.
//
// Submodules are not fetched: their directories are empty. Files in Git LFS stay
// pointers. The sandbox can fetch both itself, with a network and credentials of its own.
type Git struct {
	// URL is https, http, ssh or file, scp's form (user@host:path), or an absolute path.
	// The clone's origin is this URL without credentials. For ssh this machine's ssh is
	// used, with the user's keys, agent, configuration and known hosts, or
	// GIT_SSH_COMMAND; it never prompts.
	URL string
	// Revision is a branch, a tag, a full or abbreviated commit ID, or the full name of a
	// reference (refs/…). Of a branch and a tag of the same name the branch is meant; a
	// full name means exactly that reference, and what can be a full commit ID is that commit if
	// there is one. A branch is checked out as a branch,
	// anything else detached. Default: the repository's HEAD; then the repository may be
	// empty. If the revision does not exist, or HEAD names a branch that does not, the call
	// fails with [ErrInvalidArgument].
	Revision string
	// Depth is the number of commits of history, of the one branch. 0, the default, is
	// all. All history is fetched if the server does not send a single commit on request,
	// or if Revision is an abbreviated commit ID.
	Depth int
	// Username and Password are for https and http; the URL may contain them instead.
	// They are sent to the URL's host only, by http unencrypted, and are in no argument,
	// environment, label, error, log or file of the clone.
	Username, Password string
}

// String returns the repository and revision, without credentials.
func (g Git) String() string { return source.Git(g).String() }

// GoString returns String: the fields contain secrets.
func (g Git) GoString() string { return g.String() }

// LogValue returns String.
func (g Git) LogValue() slog.Value { return slog.StringValue(g.String()) }

func (g Git) source() source.Source { return source.Git(g) }

const (
	// DefaultTarballBytes, 8 GiB, bounds the total size of the files of a [Tarball]
	// without [Tarball.MaxBytes].
	DefaultTarballBytes int64 = source.DefaultTarballBytes
	// DefaultTarballEntries, 65,536, bounds the entries of a [Tarball] without
	// [Tarball.MaxEntries].
	DefaultTarballEntries = source.DefaultTarballEntries
)

// Tarball is a [Source]: a tar archive, plain or compressed with gzip, bzip2 or zstd, detected
// by its first bytes. Other compressions, xz among them, are an [ErrInvalidArgument] that names them. Exactly one of URL, Path and Reader is set.
//
// Each entry is validated while it is read, before it reaches the sandbox. The call fails
// with [ErrInvalidArgument], naming the cause, for an entry with .. in its name, an entry
// that would be written through a link of the archive, an archive beyond the limits, a
// truncated stream, and data that is no archive. Absolute names are relative to the
// workspace. Of several entries with the same name the last one counts. Devices are
// left out, and what was left out is in [Sandbox.Copied].
//
// Files belong to the sandbox's user, whatever the archive says. Permissions except
// setuid and setgid, times, links and user extended attributes are kept; holes become
// zeros.
type Tarball struct {
	// URL is http or https, fetched by this program through its proxies. Credentials in
	// it are sent to its host only. Up to 10 redirects are followed, but none from https
	// to http. Only the context bounds the duration.
	URL string
	// Path is a file of this machine.
	Path string
	// Reader is read once, to its end, and not closed. If a Read never returns, it
	// outlives a call whose context ends.
	Reader io.Reader
	// Strip is how many leading elements are removed from each name, as by tar's
	// --strip-components: the dot of "./a" is one. Use 1 for archives that a forge makes of a
	// repository. Entries without further elements are left out.
	Strip int
	// MaxBytes bounds the total size of all files, including holes. 0 is
	// [DefaultTarballBytes].
	MaxBytes int64
	// MaxEntries bounds the entries, including parent directories that the archive omits.
	// 0 is [DefaultTarballEntries].
	MaxEntries int
}

// String describes the archive. It omits the user, the query and the fragment of a URL: they may be
// secret.
func (t Tarball) String() string { return source.Tarball(t).String() }

// GoString returns String: a URL may contain secrets.
func (t Tarball) GoString() string { return t.String() }

// LogValue returns String.
func (t Tarball) LogValue() slog.Value { return slog.StringValue(t.String()) }

func (t Tarball) source() source.Source { return source.Tarball(t) }
