//go:build linux

package proc

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Opcodes of encoded terminal modes (RFC 4254, section 8), other than those in the tables below.
const (
	modesEnd     = 0
	modeInSpeed  = 128
	modeOutSpeed = 129
	firstOpaque  = 160 // their arguments have no known length
	noCharacter  = 255
)

// modeCharacters are the special characters, by opcode.
var modeCharacters = map[byte]int{
	1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2, 8: unix.VSTART,
	9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT, 18: unix.VDISCARD,
}

// modeFlags are bits of Iflag, Lflag, Oflag and Cflag, by opcode.
var modeFlags = [...]struct {
	of    func(*unix.Termios) *uint32
	flags map[byte]uint32
}{
	{func(t *unix.Termios) *uint32 { return &t.Iflag }, map[byte]uint32{
		30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP, 34: unix.INLCR, 35: unix.IGNCR, 36: unix.ICRNL,
		37: unix.IUCLC, 38: unix.IXON, 39: unix.IXANY, 40: unix.IXOFF, 41: unix.IMAXBEL, 42: unix.IUTF8,
	}},
	{func(t *unix.Termios) *uint32 { return &t.Lflag }, map[byte]uint32{
		50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO, 54: unix.ECHOE, 55: unix.ECHOK, 56: unix.ECHONL,
		57: unix.NOFLSH, 58: unix.TOSTOP, 59: unix.IEXTEN, 60: unix.ECHOCTL, 61: unix.ECHOKE, 62: unix.PENDIN,
	}},
	{func(t *unix.Termios) *uint32 { return &t.Oflag }, map[byte]uint32{
		70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL, 74: unix.ONOCR, 75: unix.ONLRET,
	}},
	{func(t *unix.Termios) *uint32 { return &t.Cflag }, map[byte]uint32{
		90: unix.CS7, 91: unix.CS8, 92: unix.PARENB, 93: unix.PARODD,
	}},
}

var speeds = map[uint32]uint32{
	50: unix.B50, 75: unix.B75, 110: unix.B110, 134: unix.B134, 150: unix.B150, 200: unix.B200, 300: unix.B300, 600: unix.B600,
	1200: unix.B1200, 1800: unix.B1800, 2400: unix.B2400, 4800: unix.B4800, 9600: unix.B9600, 19200: unix.B19200,
	38400: unix.B38400, 57600: unix.B57600, 115200: unix.B115200, 230400: unix.B230400, 460800: unix.B460800, 921600: unix.B921600,
}

// setModes applies encoded modes to a terminal. It ignores those that Linux does not have.
func setModes(fd int, modes []byte) error {
	if len(modes) == 0 {
		return nil
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	for len(modes) >= 5 && modes[0] != modesEnd && modes[0] < firstOpaque {
		setMode(t, modes[0], binary.BigEndian.Uint32(modes[1:]))
		modes = modes[5:]
	}
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

func setMode(t *unix.Termios, opcode byte, value uint32) {
	if i, ok := modeCharacters[opcode]; ok {
		t.Cc[i] = byte(value)
		if value == noCharacter {
			t.Cc[i] = 0
		}
		return
	}
	for _, m := range modeFlags {
		if bits, ok := m.flags[opcode]; ok {
			if *m.of(t) &^= bits; value != 0 {
				*m.of(t) |= bits
			}
			return
		}
	}
	if bits, ok := speeds[value]; ok && (opcode == modeInSpeed || opcode == modeOutSpeed) {
		// A terminal has one speed in both directions, unless one sets the other way's.
		t.Cflag = t.Cflag&^unix.CBAUD | bits
		t.Ispeed, t.Ospeed = bits, bits
	}
}
