package wire

// Dialling into the sandbox. Beside ChannelDial the guest serves the standard
// direct-tcpip and direct-streamlocal@openssh.com, which know less.
const (
	// ChannelDial connects to an address inside; Dial. One that can't be reached is a
	// rejection whose message is a DialError as JSON. Data is the connection's both
	// ways, and the end of data of either side is its half-close.
	ChannelDial = "dial@agent-sandbox"
	// ChannelListens tells whether anything accepts TCP connections on a port of the
	// sandbox; Listens. A port that nothing listens on is a rejection whose message
	// is a DialError of kind DialRefused. An accepted channel is closed at once.
	ChannelListens = "listens@agent-sandbox"

	// RequestDialed is the guest's first word on a dial channel; Dialed.
	RequestDialed = "dialed@agent-sandbox"
	// RequestDialEnd comes before the end of the data from inside; DialEnd. Data that
	// ends without it was cut.
	RequestDialEnd = "end@agent-sandbox"
)

// Dial asks for a connection. Network is tcp, tcp4, tcp6 or unix; Address is as
// Go's net.Dial takes it, names resolved inside.
type Dial struct {
	Network string `json:"network"`
	Address string `json:"address"`
}

// Listens asks after a TCP port.
type Listens struct {
	Port uint16 `json:"port"`
}

// Dialed tells the addresses of both ends as the sandbox sees them.
type Dialed struct {
	Local  string `json:"local"`
	Remote string `json:"remote"`
}

// DialEnd says how the data from inside ended: with Kind empty as it should.
type DialEnd struct {
	Kind string `json:"kind,omitempty"`
}

// Kinds of DialError, and of a DialEnd that was none. Numbers of errors differ
// between systems, so they have names here.
const (
	DialRefused     = "refused"      // ECONNREFUSED
	DialReset       = "reset"        // ECONNRESET
	DialTimeout     = "timeout"      // ETIMEDOUT
	DialNoHost      = "no-host"      // EHOSTUNREACH
	DialNoNetwork   = "no-network"   // ENETUNREACH
	DialNoAddress   = "no-address"   // EADDRNOTAVAIL
	DialNotFound    = "not-found"    // ENOENT: there is no such socket
	DialPermission  = "permission"   // EACCES or EPERM
	DialUnknownName = "unknown-name" // the name did not resolve; Name is set
	DialMalformed   = "malformed"    // network or address make no sense
	DialOther       = "other"
)

// DialError says why there is no connection.
type DialError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Name    string `json:"name,omitempty"` // the host name that did not resolve
}

func (e *DialError) Error() string { return e.Message }
