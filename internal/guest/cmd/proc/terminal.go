//go:build linux

package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// openTerminal opens a pseudo-terminal with encoded modes: its master for this process, and a
// descriptor of its slave for the command, with its path.
func openTerminal(size wire.Size, modes []byte) (master *os.File, slave int, path string, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, "", fmt.Errorf("open a terminal: %w", err)
	}
	fail := func(err error) (*os.File, int, string, error) {
		unix.Close(fd)
		return nil, -1, "", fmt.Errorf("open a terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return fail(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	path = fmt.Sprintf("/dev/pts/%d", n)
	slave, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	if err := setModes(slave, modes); err != nil {
		unix.Close(slave)
		return fail(err)
	}
	resize(fd, size)
	return os.NewFile(uintptr(fd), "terminal"), slave, path, nil
}

func resize(fd int, size wire.Size) {
	if size.Rows != 0 || size.Cols != 0 {
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols, Xpixel: size.Width, Ypixel: size.Height})
	}
}

// terminalEOF writes the end-of-file character if the terminal is in canonical mode, twice
// in the middle of a line.
func terminalEOF(master *os.File, last byte) {
	raw, err := master.SyscallConn()
	if err != nil {
		return
	}
	var eof []byte
	raw.Control(func(fd uintptr) {
		if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil && t.Lflag&unix.ICANON != 0 {
			eof = []byte{t.Cc[unix.VEOF]}
		}
	})
	if len(eof) > 0 && last != 0 && last != '\n' && last != '\r' {
		eof = append(eof, eof[0])
	}
	if len(eof) > 0 {
		master.Write(eof)
	}
}
