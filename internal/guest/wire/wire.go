// Package wire is what the guest inside a sandbox and its client outside say to
// each other: the shape of the arguments, the connection with its SSH channels, their types and
// the JSON they carry. Both ends can import it without each other.
package wire

import (
	"syscall"
	"time"
)

// Where the guest is in a container. In a sandbox the directory is Dir, "-" and a random value:
// an image, a volume or the files of another sandbox can't have a link to a name that nobody
// knows before the container is created. Helpers run an image of the guest alone, with Dir as
// it is.
const (
	Dir     = "/.agent-sandbox"
	Program = "guest" // its name in that directory
	Path    = Dir + "/" + Program
	// Self is the guest's path for a process that runs it, and so what Exec.Path names for a
	// verb of the guest.
	Self = "/proc/self/exe"
)

// Verbs of the guest binary: its first argument.
const (
	VerbInit  = "init"  // PID 1; the second argument is Init as JSON
	VerbServe = "serve" // a server on standard input and output; Serve
	VerbKeep  = "keep"  // holds detached commands; started by serve
	VerbRun   = "run"   // sheds what a child must not inherit, then executes it
	VerbCopy  = "copy"  // copies trees between mounts of a helper; the second argument is Copy as JSON
	VerbTry   = "try"   // DIR: tries what the kernel and DIR's disk can do; Abilities as JSON
	VerbProbe = "probe" // prints what a helper sees of the engine's network; Probe as JSON
	VerbLayer = "layer" // prints where the helper's own layer is; Layer as JSON
	VerbLook  = "look"  // looks at paths of trees; Look and Looked as JSON
	VerbDu    = "du"    // sizes the directories that its arguments name; prints Sizes as JSON
	VerbEmpty = "empty" // DIR: removes what it contains; prints {}
)

// SSH channel types. The extra data of an open request is JSON of the type named.
const (
	// ChannelExec starts a command; Exec. A command that can't start is a
	// rejection whose message is a StartError as JSON.
	ChannelExec = "exec@agent-sandbox"
	// ChannelProcess reattaches to a detached command; Attach. An unknown id is
	// a rejection whose message is a StartError of kind KindUnknownProcess.
	ChannelProcess = "process@agent-sandbox"
	// ChannelControl is a plain pipe to PID 1's control socket; no extra data.
	ChannelControl = "control@agent-sandbox"
	// ChannelKeep is a plain pipe to the keeper, which is a server again, for
	// ChannelExec and ChannelProcess for detached commands; no extra data. It
	// starts the keeper when none runs.
	ChannelKeep = "keep@agent-sandbox"
)

// RequestKeepalive is a global request of either side for a reply of the other, which may refuse
// it: it is the name that sshd uses.
const RequestKeepalive = "keepalive@openssh.com"

// Requests on exec and process channels.
const (
	RequestSignal  = "signal@agent-sandbox"  // client to guest; Signal
	RequestResize  = "resize@agent-sandbox"  // client to guest; Size
	RequestStarted = "started@agent-sandbox" // guest to client, first of all; Started
	// RequestExited says that the command itself has ended while its output has not; Exit. It
	// overtakes output that the client does not read.
	RequestExited = "exited@agent-sandbox" // guest to client
	RequestClose  = "close@agent-sandbox"  // client to guest; Close
	RequestExit   = "exit@agent-sandbox"   // guest to client, last of all; Exit
)

// Abstract socket names in the sandbox's own network namespace.
const (
	ControlSocket = "@agent-sandbox/control"
	KeepSocket    = "@agent-sandbox/keep"
)

// An open request or a channel request too large for one SSH packet goes in parts.
// A connection's client sends global requests RequestPart (8 bytes of a number it
// chose, big endian, then a part), waiting for each reply, and then opens the
// channel with the extra data PartsPrefix and the same 8 bytes. The guest sends
// channel requests RequestPart, each a part, before the request they belong to,
// whose own payload is the last one.
const (
	RequestPart = "part@agent-sandbox"
	PartsPrefix = "#"
	MaxPart     = 128 << 10 // bytes in one part
	MaxParts    = 32 << 20  // bytes one connection may hold that way
)

// Exit codes of PID 1: why a session ended.
const (
	CodeStopped = 143 // a stop was asked for from outside
	CodeTimeout = 124 // the session's deadline passed
	CodeLease   = 123 // nobody renewed the lease
	CodeFailed  = 122 // PID 1 could not set the session up
	CodeChanged = 121 // another process changed the network or its rules
	CodeIdle    = 120 // nobody used the session for Idle.Timeout
)

// mark is how much lower a marked exit code is. No signal gives such a code: theirs are above 128.
const mark = 64

// MarkedCode returns the exit code that says that the session ends with code, and one thing more. As
// the code of PID 1 it says that the session has left the container's files as a start needs them: at
// each path of EnginePaths, and on the way to each mount, is what may be there. As the code of a serve
// it says that PID 1 has refused it.
func MarkedCode(code int) int { return code - mark }

// EndCode returns the code that an exit code stands for, and whether that is a MarkedCode.
func EndCode(exit int) (code int, marked bool) {
	switch code := exit + mark; code {
	case CodeStopped, CodeTimeout, CodeLease, CodeChanged, CodeIdle:
		return code, true
	}
	return exit, false
}

// Init has PID 1's settings. They are an argument of the container's command, which anyone
// inside can read: nothing in it is secret.
type Init struct {
	// ControlKey is the Ed25519 public key that control requests are signed for.
	// The private half never enters the sandbox.
	ControlKey []byte `json:"control_key,omitempty"`
	// Lease ends the session when it has not been renewed for so long and a third
	// more; 0 is no lease. The third is for an owner who could not be heard because
	// the session was frozen: it begins only when PID 1 sees that the lease is over.
	Lease time.Duration `json:"lease,omitempty"`
	// Timeout ends the session so long after its start; 0 is none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Grace is what processes get between SIGTERM and SIGKILL when PID 1 itself
	// ends the session.
	Grace time.Duration `json:"grace,omitempty"`
	// Idle ends the session when nobody uses it.
	Idle Idle `json:"idle,omitzero"`
	// Ports are the published ones, TCP: what answers from outside under every policy.
	Ports []uint16 `json:"ports,omitempty"`
	// Workspace is given to its user before anything runs, while it is new: still
	// root's and empty.
	Workspace Workspace `json:"workspace,omitzero"`
	// Mounts are the volumes and directories that have to be mounted, beside the guest's own.
	Mounts []Mount `json:"mounts,omitempty"`
	// Main is the optional main process. Its output is the container's log. Without
	// Env its environment is the container's: values stay out of the argument list.
	Main *Exec `json:"main,omitempty"`
	// Home says that HOME in the container's environment is meant. Otherwise it is
	// the engine's doing, for root, and the main process gets its own user's.
	Home bool `json:"home,omitempty"`
}

// Idle says when a session ends because nobody uses it. Uses are commands, connections through
// serve, calls to the file server, and connections to published ports.
type Idle struct {
	Timeout time.Duration `json:"timeout,omitempty"` // 0 is never
	// IgnoreDetached says that a detached command is no use.
	IgnoreDetached bool `json:"ignore_detached,omitempty"`
	// Version orders the changes of a sandbox: PID 1 takes none that is not newer than what
	// it has.
	Version int64 `json:"version,omitempty"`
}

// Workspace is a directory and who it is for, as Exec.User says it.
type Workspace struct {
	Path string `json:"path,omitempty"`
	User string `json:"user,omitempty"`
	// Mounts are the names in it that the engine made for others to be mounted at: a
	// directory with no more than these is as good as empty.
	Mounts []string `json:"mounts,omitempty"`
}

// Mount is a volume, or a directory of the engine's machine, and where it is mounted: a path without
// symbolic links.
type Mount struct {
	Target string `json:"target"`
	Volume string `json:"volume,omitempty"`
}

// Exec asks for one command. Path is the program, looked up in the PATH of Env when
// it has no slash; empty, it is Args[0]. Env is complete, but for HOME, USER, PATH,
// HOSTNAME and TERM, which the guest adds when they are absent.
type Exec struct {
	ID   string   `json:"id,omitempty"` // of a detached command, or one to be found again
	Path string   `json:"path,omitempty"`
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`  // default "/"
	User string   `json:"user,omitempty"` // name|uid[:group|gid], default 0
	// Sandbox is the ID of the sandbox of a detached command, for its record. Without it there
	// is none.
	Sandbox string `json:"sandbox,omitempty"`
	// NewPrivileges lets setuid programs and file capabilities give a command of a user
	// other than root more privileges.
	NewPrivileges bool `json:"new_privileges,omitempty"`
	// Stdin says that the client will send input; without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// Merge makes stderr the same pipe as stdout.
	Merge bool `json:"merge,omitempty"`
	// Stdout and Stderr say where the output goes, except on a terminal.
	Stdout Sink `json:"stdout,omitempty"`
	Stderr Sink `json:"stderr,omitempty"`
	// TTY runs the command on a new pseudo-terminal of Size; stderr joins stdout.
	TTY  bool `json:"tty,omitempty"`
	Size Size `json:"size,omitzero"`
	// Modes are those of the terminal, encoded as in RFC 4254, section 8. Others are the kernel's.
	Modes []byte `json:"modes,omitempty"`
	// TTYVariable is the environment variable that has the terminal's path, if any.
	TTYVariable string `json:"tty_variable,omitempty"`
	// Detached commands outlive the connection; only the keeper takes them.
	Detached bool `json:"detached,omitempty"`
	// Timeout kills the command and all its descendants; 0 is none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// WaitDelay is how long output may stay open after the command's own exit; 0
	// waits for as long as any process holds it.
	WaitDelay time.Duration `json:"wait_delay,omitempty"`
}

// ServesFiles reports whether the command is the file server of a client, which runs for as long as
// that is connected.
func (e Exec) ServesFiles() bool {
	return e.Path == Self && len(e.Args) > 1 && e.Args[1] == VerbFiles
}

// Sink is where an output stream of a command goes. A guest that does not know a sink sends the
// output to the client.
type Sink string

const (
	SinkClient Sink = ""       // to the client
	SinkNull   Sink = "null"   // to /dev/null inside, where background processes may write on
	SinkClosed Sink = "closed" // to a pipe without a reader: a write is EPIPE
)

// Streams of a command's output.
const (
	StreamStdout = 1
	StreamStderr = 2
)

// Close says that nobody reads an output stream any more: the command's next write is EPIPE, and on
// a terminal it gets SIGHUP.
type Close struct {
	Stream int `json:"stream"`
}

// Program is what to look up and run.
func (e *Exec) Program() string {
	if e.Path == "" && len(e.Args) > 0 {
		return e.Args[0]
	}
	return e.Path
}

// Size of a terminal in character cells and, where that is known, in pixels.
type Size struct {
	Rows   uint16 `json:"rows,omitempty"`
	Cols   uint16 `json:"cols,omitempty"`
	Width  uint16 `json:"width,omitempty"`
	Height uint16 `json:"height,omitempty"`
}

// Attach asks for a detached command by its ID: its kept output, then what is live.
type Attach struct {
	ID string `json:"id"`
	// Quiet asks for neither output nor exit: the channel is for requests, also about what a command that
	// has ended left behind. A guest that does not know it sends both.
	Quiet bool `json:"quiet,omitempty"`
}

// Started is the first request of the guest on an accepted channel.
type Started struct {
	Pid int `json:"pid"` // in the sandbox's PID namespace
	// Exec is the request as it was made, without its environment. On an exec
	// channel only its ID is sent, since the client has the rest.
	Exec Exec `json:"exec"`
}

// Signal asks for a signal to the command's process group, or to every process
// that descends from it.
type Signal struct {
	Number int  `json:"number"` // Linux numbering
	Tree   bool `json:"tree,omitempty"`
}

// Exit tells how a command ended.
type Exit struct {
	Code     int  `json:"code"`             // 0–255; 128+n after a signal
	Signal   int  `json:"signal,omitempty"` // the signal that ended it, Linux numbering
	TimedOut bool `json:"timed_out,omitempty"`
	// OutOfMemory says that the kernel has killed the command for memory, or a process of the
	// sandbox while the command ran, which exited as a shell does whose child was killed.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Ending says that the session was ending: PID 1 had sent SIGTERM to all.
	Ending bool `json:"ending,omitempty"`
	// WaitDelay says that output was cut because descendants held it open.
	WaitDelay bool `json:"wait_delay,omitempty"`
	// Dropped counts bytes of output that were no longer kept for this reader.
	Dropped int64 `json:"dropped,omitempty"`
	// User and Sys are the CPU time of the command and the children it waited for.
	User time.Duration `json:"user,omitempty"`
	Sys  time.Duration `json:"sys,omitempty"`
}

// Kinds of StartError.
const (
	KindNotFound       = "not-found"       // no such program
	KindPermission     = "permission"      // not executable, or not by this user
	KindDirectory      = "directory"       // the working directory can't be entered
	KindUser           = "user"            // no such user or group
	KindArguments      = "arguments"       // argv and environment too large, or malformed
	KindUnknownProcess = "unknown-process" // no such detached command
	KindResources      = "resources"       // no memory, processes or files left
	KindStopping       = "stopping"        // the session is ending
	KindOther          = "other"
)

// StartError says why a command did not start.
type StartError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	// TooBig says that arguments and environment are too large for the kernel (E2BIG).
	TooBig bool `json:"too_big,omitempty"`
	// Errno is Linux's number for the reason; 0 if there is none.
	Errno int `json:"errno,omitempty"`
}

func (e *StartError) Error() string { return e.Message }

// Unwrap returns syscall.E2BIG for what is too big, as os/exec does.
func (e *StartError) Unwrap() error {
	if e.TooBig {
		return syscall.E2BIG
	}
	return nil
}

// Control requests. On connection PID 1 sends a Challenge line; a client answers
// with a Signed line; PID 1 answers with a Reply line, which carries the next nonce.
// A wrong signature is answered with an error and the end of the connection. Lines
// end with "\n" and are at most MaxControlLine bytes.
type (
	// Challenge is what PID 1 says first. A nonce is NonceSize bytes, used once.
	Challenge struct {
		Nonce []byte `json:"nonce"`
	}
	// Signed is a request. Signature is Ed25519 over the nonce of the last line
	// that PID 1 sent, followed by Payload.
	Signed struct {
		Payload   []byte `json:"payload"` // Control as JSON
		Signature []byte `json:"signature"`
	}
	// Control says what is wanted.
	Control struct {
		Op    string        `json:"op"`
		Lease time.Duration `json:"lease,omitempty"`
		// Alone is how much longer an OpLease lasts, at most, once the process has ended that it came through,
		// and a third more as of any lease; 0 is as long as the lease.
		Alone time.Duration `json:"alone,omitempty"`
		// Timeout is what OpExtend adds to the timeout.
		Timeout time.Duration `json:"timeout,omitempty"`
		// ID tells an OpExtend from the one before: a repeated one counts once. Of an OpLease and the OpRelease
		// of the same lease it is the same: an OpLease that arrives after its OpRelease counts for nothing.
		ID string `json:"id,omitempty"`
		// Idle is for OpIdle.
		Idle *Idle `json:"idle,omitempty"`
		// Timeouts is for OpTimeouts.
		Timeouts *Timeouts `json:"timeouts,omitempty"`
		// Hook is for OpHook.
		Hook *Hook `json:"hook,omitempty"`
		// Begin is for OpBegin.
		Begin *Begin `json:"begin,omitempty"`
	}
	// Timeouts are those of a session that count from the request on, and not from its start.
	Timeouts struct {
		// Suspended says that no timeout ends the session until the next OpTimeouts.
		Suspended bool `json:"suspended,omitempty"`
		// Timeout is from the request to the session's end, 0 is never; Grace is the time between
		// SIGTERM and SIGKILL.
		Timeout time.Duration `json:"timeout,omitempty"`
		Grace   time.Duration `json:"grace,omitempty"`
	}
	// Reply is PID 1's answer to one request.
	Reply struct {
		Error string `json:"error,omitempty"`
		Nonce []byte `json:"nonce"`
		// Main tells of the main process, for OpStatus.
		Main *MainStatus `json:"main,omitempty"`
		// Renewed says of an OpLease that one came through the same process before, and nobody has released it.
		Renewed bool `json:"renewed,omitempty"`
		// LeaseLeft and TimeLeft are 0 when there is none.
		LeaseLeft time.Duration `json:"lease_left,omitempty"`
		TimeLeft  time.Duration `json:"time_left,omitempty"`
		// Timeout is how long after its start the session ends, with all extensions;
		// 0 is never.
		Timeout time.Duration `json:"timeout,omitempty"`
		// Ending is the exit code that PID 1 will have, once the session is ending.
		Ending int `json:"ending,omitempty"`
		// Idle is in every reply of a guest that has idle timeouts.
		Idle *IdleStatus `json:"idle,omitempty"`
		// Network is in every reply of a guest that enforces policies; see policy.go.
		Network *Network `json:"network,omitempty"`
		// Refused says of which kind the Error of an OpBegin is.
		Refused string `json:"refused,omitempty"`
		// Egress is for OpEgress.
		Egress *EgressLog `json:"egress,omitempty"`
		// Held answers an OpHold, and Moved the end of the hold; see hold.go.
		Held  bool   `json:"held,omitempty"`
		Moved string `json:"moved,omitempty"`
	}
	// IdleStatus tells of the idle timeout.
	IdleStatus struct {
		Version int64 `json:"version,omitempty"` // of the Idle in force
		// Left is how long the session lives if nobody uses it; 0 without a timeout, and
		// while it is used.
		Left time.Duration `json:"left,omitempty"`
	}
	// MainStatus tells of the main process; without Start and Exit it runs.
	MainStatus struct {
		Pid   int         `json:"pid,omitempty"`
		Start *StartError `json:"start,omitempty"` // it never started
		Exit  *Exit       `json:"exit,omitempty"`  // it ended
	}
)

// MaxControlLine bounds a line of the control protocol, its end included.
const MaxControlLine = 64 << 10

// NonceSize is the length of a control nonce in bytes.
const NonceSize = 32

// Operations of Control.
const (
	OpStatus  = "status"  // answered once the main process has started or failed to
	OpLease   = "lease"   // renew: the session lives at least Lease from now
	OpRelease = "release" // no lease any more
	OpExtend  = "extend"  // the timeout comes Timeout later; without one there is nothing to do
	OpIdle    = "idle"    // replace Init.Idle by Control.Idle, if that is newer
	// OpTimeouts replaces the timeout by Control.Timeouts, and the idle timeout counts anew. The lease stays.
	OpTimeouts = "timeouts"
)
