// Package steps has calls of an open file that package os, in a program inside a sandbox, and the sandbox's own files carry out alike.
package steps

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// Use carries out steps on an open file, such as "w7" to write 7 bytes, and says what each did and where the offset is then.
// class names an error.
func Use(f File, steps string, class func(error) string) string {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "no regular file"
	}
	var did strings.Builder
	for i, step := range strings.Fields(steps) {
		var text []byte
		var n int
		var err error
		value, _ := strconv.ParseInt(step[1:], 10, 64)
		switch step[0] {
		case 'r':
			text = make([]byte, value)
			n, err = f.Read(text)
			text = text[:n]
		case 'c':
			var all bytes.Buffer
			_, err = io.Copy(&all, f)
			text = all.Bytes()
		case 'w':
			n, err = f.Write(bytes.Repeat([]byte{'a' + byte(i)}, int(value)))
		case 'f':
			var done int64
			done, err = io.Copy(f, io.LimitReader(strings.NewReader(strings.Repeat("f", 99)), value))
			n = int(done)
		case 't':
			err = f.Truncate(value)
		case '0', '1', '2':
			_, err = f.Seek(value, int(step[0]-'0'))
		}
		at, seekErr := f.Seek(0, io.SeekCurrent)
		fmt.Fprintf(&did, "%s: %d %q %s, at %d %s\n", step, n, text, class(err), at, class(seekErr))
	}
	return did.String()
}

// File is an open file of either.
type File interface {
	io.ReadWriteSeeker
	Truncate(size int64) error
	Stat() (fs.FileInfo, error)
}
