package enginetest

import (
	"flag"
	"net"
	"strings"
	"sync"
	"testing"
)

// stories are the tests that use the engine with -short, too.
var stories sync.Map

// Story has a test use the engine in every tier of the tests: with -short, too, where
// there is one. It is the first thing that the test does.
func Story(t testing.TB) {
	t.Helper()
	stories.Store(t.Name(), true)
	Need(t)
}

// Need is called before a test uses the engine. With -short it skips the test unless that
// is a [Story] and there is an engine.
func Need(t testing.TB) {
	t.Helper()
	if !testing.Short() {
		return
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	if _, is := stories.Load(name); !is {
		t.Skip("it needs an engine: -short leaves it out")
	}
	if !Answers() {
		t.Skip("there is no engine, and with -short none is needed")
	}
}

// Answers reports whether there is an engine to test with.
var Answers = sync.OnceValue(func() bool {
	network, addr, _ := strings.Cut(EngineHost(), "://")
	conn, err := net.Dial(network, addr)
	if err != nil {
		return false
	}
	return conn.Close() == nil
})

// LeaveOut has this program's tests and examples of the pattern left out with -short when
// there is no engine: those that can't ask for it themselves. It is for TestMain.
func LeaveOut(pattern string) {
	flag.Parse()
	if !testing.Short() || Answers() {
		return
	}
	skip := flag.Lookup("test.skip")
	_ = skip.Value.Set(strings.TrimPrefix(skip.Value.String()+"|"+pattern, "|"))
}
