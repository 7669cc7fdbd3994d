// Command tree makes, spoils and lists files in a sandbox, for the tests of forks. What it makes
// depends on a seed alone.
package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
)

func main() {
	verbs := map[string]func(args []string) error{"grow": grow, "spoil": spoil, "list": list, "hold": hold}
	verb, known := verbs[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "no verb", os.Args[1])
		os.Exit(2)
	}
	if err := verb(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// random is the source of what is made in a directory.
func random(seed, dir string) (*rand.Rand, error) {
	n, err := strconv.ParseUint(seed, 10, 64)
	h := fnv.New64a()
	h.Write([]byte(dir))
	return rand.New(rand.NewPCG(n, h.Sum64())), err
}

func bytesOf(r *rand.Rand, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n]
}
