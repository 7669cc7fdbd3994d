//go:build !linux

package archive

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

const openNonblock = 0

func identify(fs.FileInfo) (fileID, bool) { return fileID{}, false }

func getXattrs(*os.File) (map[string]string, []string) { return nil, nil }

func setXattr(*os.File, string, string) error { return errors.ErrUnsupported }

func setTimes(_ *os.File, root *os.Root, name string, t time.Time) error {
	return root.Chtimes(name, time.Time{}, t)
}

func setLinkTimes(*os.Root, string, time.Time) error { return nil }

func dataPieces(*os.File, fs.FileInfo) ([]piece, bool) { return nil, false }
