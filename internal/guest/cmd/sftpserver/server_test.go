//go:build linux

package sftpserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"testing"
)

func FuzzRequests(f *testing.F) {
	f.Add(byte(typeInit), []byte{0, 0, 0, 3})
	f.Add(byte(typeLstat), []byte{0, 0, 0, 1, 0, 0, 0, 1, '/'})
	f.Add(byte(typeRealpath), []byte{0, 0, 0, 1, 0, 0, 0, 9, '/', '.', '.', '/', 'd', '/', '.', '/', '/'})
	f.Add(byte(typeRead), []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add(byte(typeExtended), append([]byte{0, 0, 0, 1, 0, 0, 0, 30}, "users-groups-by-id@openssh.com\x00\x00\x00\x03abc\x00\x00\x00\x00"...))
	f.Fuzz(func(t *testing.T, kind byte, request []byte) {
		switch kind {
		case typeOpen, typeSetstat, typeRemove, typeMkdir, typeRmdir, typeRename, typeSymlink:
			return // they change files
		}
		var out bytes.Buffer
		s := &session{out: bufio.NewWriter(&out), handles: map[string]*handle{}, data: make([]byte, 4+maxData)}
		if kind == typeExtended && !bytes.Contains(request, []byte("by-id")) && !bytes.Contains(request, []byte("expand")) {
			return
		}
		if s.serve(kind, &unpack{rest: request}) != nil {
			return
		}
		s.out.Flush()
		if size := binary.BigEndian.Uint32(out.Bytes()); int(size) != out.Len()-4 {
			t.Errorf("request %d %q: a reply of %d bytes says %d", kind, request, out.Len()-4, size)
		}
		for _, h := range s.handles {
			h.Close()
		}
	})
}
