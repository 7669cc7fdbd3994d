// Package guest embeds the guest, the program that runs inside every sandbox, and
// implements the client side of its protocol.
//
// One static binary (its source is in cmd) is PID 1 of the container, the
// server behind every command, and the keeper of detached commands. Package wire has the
// types that both sides share. The client side runs on any system.
package guest

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
)

//go:generate go run ./gen

//go:embed bin/*.gz
var binaries embed.FS

// build describes one embedded binary; sums.go, which gen writes, lists them.
type build struct {
	sha256 string // hex, of the uncompressed binary
	size   int64  // bytes, uncompressed
}

func lookup(arch string) (build, error) {
	b, ok := builds[arch]
	if !ok {
		return build{}, fmt.Errorf("guest: no binary for architecture %q, only for amd64 and arm64", arch)
	}
	return b, nil
}

// Binary returns the guest for a Linux engine of the given architecture, "amd64"
// or "arm64" in Go's spelling. It decompresses on every call; the caller owns the result.
func Binary(arch string) ([]byte, error) {
	b, err := lookup(arch)
	if err != nil {
		return nil, err
	}
	packed, err := binaries.ReadFile("bin/guest-linux-" + arch + ".gz")
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("guest: decompress: %w", err)
	}
	out := make([]byte, b.size)
	if _, err := io.ReadFull(z, out); err != nil {
		return nil, fmt.Errorf("guest: decompress: %w", err)
	}
	return out, nil
}

// Hash identifies the binary that Binary returns: the first 12 hexadecimal digits of its
// SHA-256. It is cheap.
func Hash(arch string) (string, error) {
	b, err := lookup(arch)
	if err != nil {
		return "", err
	}
	return b.sha256[:12], nil
}

// Sum is the SHA-256 of the binary that Binary returns, in hexadecimal. It is cheap.
func Sum(arch string) (string, error) {
	b, err := lookup(arch)
	return b.sha256, err
}

// Size is the length in bytes of the binary that Binary returns. It is cheap.
func Size(arch string) (int64, error) {
	b, err := lookup(arch)
	return b.size, err
}
