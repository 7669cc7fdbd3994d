package wire

// The keeper writes what detached commands write into the container's log as well, so
// that it can be read when the session is over. The log is the main process's, which
// writes to it directly, so each line of a command is a frame of one write that the
// kernel does not mix with others:
//
//	LogMark ID SP ("." | "+") SP text LF
//
// A "+" says that the line goes on in the next frame of the same command and stream.
const (
	LogMark     = "\x1eagent-sandbox "
	LogWhole    = '.'
	LogPart     = '+'
	MaxLogFrame = 4096 // PIPE_BUF
	MaxLogID    = 64   // of a command whose output is written there
)

// StdioRequest on the control socket asks PID 1 for what a keeper needs: the container's
// stdout and stderr, and the socket that PID 1 has bound to KeepSocket before any other
// process could. They come as rights with one byte, to root alone. It takes no signature:
// root inside could write to the log as the main process does.
const StdioRequest = "stdio\n"

// UseRequest on the control socket, by a serve, and UseDetachedRequest, by a keeper, ask PID 1
// for a file to note the uses of the session in, as long as the connection lasts. It comes as a
// right with one byte, to root alone, and has UseSize bytes: two integers in the machine's byte
// order, the time since boot of the last use in nanoseconds, and the number of uses that go on.
const (
	UseRequest         = "use\n"
	UseDetachedRequest = "use detached\n"
	UseSize            = 16
)
