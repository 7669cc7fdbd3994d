//go:build linux

package guest_test

import (
	"io"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func BenchmarkExecTrue(b *testing.B) {
	conn, _ := serve(b)
	for b.Loop() {
		p, err := conn.Exec(b.Context(), wire.Exec{Args: []string{"true"}})
		if err != nil {
			b.Fatal(err)
		}
		if exit, err := p.Wait(); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
	}
}

func BenchmarkExecTrueConcurrent(b *testing.B) {
	conn, _ := serve(b)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := conn.Exec(b.Context(), wire.Exec{Args: []string{"true"}})
			if err != nil {
				b.Error(err)
				return
			}
			p.Wait()
		}
	})
}

// BenchmarkConnect is a start of serve, a handshake and an end.
func BenchmarkConnect(b *testing.B) {
	for b.Loop() {
		conn, cmd := serve(b)
		conn.Close()
		cmd.Wait()
	}
}

func BenchmarkStdout(b *testing.B) {
	const size = 256 << 20
	conn, _ := serve(b)
	b.SetBytes(size)
	for b.Loop() {
		p, err := conn.Exec(b.Context(), wire.Exec{Args: []string{"head", "-c", "268435456", "/dev/zero"}})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, p.Stdout()); n != size || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkStdin(b *testing.B) {
	const size = 256 << 20
	conn, _ := serve(b)
	b.SetBytes(size)
	buf := make([]byte, 256<<10)
	for b.Loop() {
		p, err := conn.Exec(b.Context(), wire.Exec{Args: sh("cat >/dev/null"), Stdin: true})
		if err != nil {
			b.Fatal(err)
		}
		go io.Copy(io.Discard, p.Stdout())
		for range size / len(buf) {
			if _, err := p.Stdin().Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		p.Stdin().Close()
		p.Wait()
	}
}
