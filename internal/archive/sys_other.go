//go:build !linux

package archive

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

const openNonblock = 0

// into is a directory to write to.
type into = os.Root

func openInto(name string) (*into, error) { return os.OpenRoot(name) }

func openBelow(t *into, name string) (*into, error) { return openRoot(t, name) }

// Identify knows no identities here: each name is copied as a file.
func Identify(fs.FileInfo) (FileID, bool) { return FileID{}, false }

func getXattrs(*os.File) (map[string]string, []string) { return nil, nil }

func setXattr(*os.File, string, string) error { return errors.ErrUnsupported }

func setTimes(_ *os.File, root *into, name string, t time.Time) error {
	return root.Chtimes(name, time.Time{}, t)
}

func setLinkTimes(*into, string, time.Time) error { return nil }

// ReadUnsized reads a file whose size the kernel does not know.
func ReadUnsized(f *os.File) ([]byte, error) { return readToEnd(f) }

// Pieces finds no holes here.
func Pieces(_ *os.File, info fs.FileInfo) []Piece { return []Piece{{0, info.Size()}} }
