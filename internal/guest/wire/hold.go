package wire

import "time"

// OpHold stops all processes of the sandbox except PID 1 and the servers of its owner's
// connections, which start none meanwhile. A hold ends with its connection. PID 1 grants one
// at a time; another one waits.
//
// The answer is a Reply with Held, or with an Error if the processes can't be held. From then on
// the client sends lines that are not signed: an empty one at least every HoldSilence, and
// HoldRelease at the end. The answer to that is a Reply whose Moved says what has run during the
// hold, or is empty.
const OpHold = "hold"

// Lines of a client that holds.
const (
	HoldBeat    = "\n"
	HoldRelease = "release\n"
)

// HoldSilence is how long a client that holds may be silent before PID 1 ends the hold.
const HoldSilence = 10 * time.Second

// GateRequest on the control socket asks PID 1 to announce holds on the connection. It takes no
// signature: PID 1 stops a process that asks like any other, unless the owner has sent signed
// requests through it. PID 1 sends GateClose when a hold is to begin, and GateOpen when it is
// over. The other side answers GateClose with GateClosed once it starts no process.
const (
	GateRequest = "gate\n"
	GateClose   = "close\n"
	GateOpen    = "open\n"
	GateClosed  = "closed\n"
)
