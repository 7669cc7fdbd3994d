package wire

// VerbSFTP is an SFTP server on standard input and output: the sftp subsystem of
// standard SSH sessions.
const VerbSFTP = "sftp"

// Serve is the optional argument of VerbServe, as JSON: who standard SSH sessions are
// for. Anyone inside can read it. Their environment is the server's own.
type Serve struct {
	User string `json:"user,omitempty"` // as Exec.User
	// Caller is the name of the user that the client's program runs as. Clients of SSH send it
	// when they are given no name, so it means User.
	Caller string `json:"caller,omitempty"`
	Dir    string `json:"dir,omitempty"`
	// Home says that HOME in the environment is meant; see Init.Home.
	Home          bool `json:"home,omitempty"`
	NewPrivileges bool `json:"new_privileges,omitempty"` // as Exec.NewPrivileges
	// HostKey says that the client speaks standard SSH, and that the seed of the host key,
	// HostKeySize bytes, comes on standard input before anything else.
	HostKey bool `json:"host_key,omitempty"`
}

// HostKeySize is the length of the seed of an Ed25519 key.
const HostKeySize = 32

// EnterRequest on the control socket asks PID 1, by a serve that has just begun, whether it may
// serve. The answer is EnterYes until the session ends, and then the exit code of PID 1 in decimal:
// what begins after that changes nothing in the sandbox, and ends with the MarkedCode.
const (
	EnterRequest = "enter\n"
	EnterYes     = "yes\n"
)
