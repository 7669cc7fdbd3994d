//go:build linux

package sshserver

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// history lists detached commands of this session and earlier ones, the oldest first.
type history struct {
	mu     sync.Mutex
	loaded bool
	all    []wire.Process
}

// add records a command that has started, and returns a function that records its exit.
func (h *history) add(req wire.Exec) (ended func(wire.Exit)) {
	p := wire.Process{ID: req.ID, Sandbox: req.Sandbox, Path: req.Program(), Dir: req.Dir, User: req.User, Started: time.Now(), Live: true}
	for _, text := range []*string{&p.Path, &p.Dir, &p.User} {
		*text = shortened(*text)
	}
	for _, a := range req.Args[:min(len(req.Args), wire.MaxProcessArgs)] {
		p.Args = append(p.Args, shortened(a))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	// A fork's file has what its source recorded.
	h.all = slices.DeleteFunc(h.all, func(o wire.Process) bool { return o.Sandbox != p.Sandbox || o.ID == p.ID })
	for len(h.all) >= wire.MaxProcesses {
		i := slices.IndexFunc(h.all, func(o wire.Process) bool { return !o.Live })
		if i < 0 { // they all run: the list is not complete
			i = 0
		}
		h.all = slices.Delete(h.all, i, i+1)
	}
	h.all = append(h.all, p)
	h.save()
	return func(exit wire.Exit) {
		h.mu.Lock()
		defer h.mu.Unlock()
		i := slices.IndexFunc(h.all, func(o wire.Process) bool { return o.ID == p.ID && o.Live })
		if i >= 0 {
			h.all[i].Ended, h.all[i].Live, h.all[i].Exit = time.Now(), false, &exit
			h.save()
		}
	}
}

// shortened cuts a text to what the list may have of it, before a character.
func shortened(text string) string {
	if len(text) <= wire.MaxProcessText {
		return text
	}
	cut := text[:wire.MaxProcessText]
	return cut[:wholeRunes([]byte(cut))]
}

// list returns a copy of the list.
func (h *history) list() []wire.Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	return slices.Clone(h.all)
}

// load reads the file, once. Root inside may have written it.
func (h *history) load() {
	if h.loaded {
		return
	}
	h.loaded = true
	f, err := os.OpenFile(wire.ProcessesFile, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	text, err := io.ReadAll(io.LimitReader(f, wire.MaxProcessesSize))
	if err != nil || json.Unmarshal(text, &h.all) != nil {
		h.all = nil
	}
	h.all = h.all[:min(len(h.all), wire.MaxProcesses)]
	for i := range h.all {
		h.all[i].Live = false // the keeper of that time is gone
	}
}

// save replaces the file. Where that is not possible, as on a full disk, the list is of this
// session alone.
func (h *history) save() {
	if h.all[len(h.all)-1].Sandbox == "" {
		return
	}
	kept := slices.Clone(h.all)
	for i := range kept {
		kept[i].Args, kept[i].Live = nil, false
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return
	}
	next := wire.ProcessesFile + ".new"
	os.Remove(next)
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if e := f.Close(); err != nil || e != nil || os.Rename(next, wire.ProcessesFile) != nil {
		os.Remove(next)
	}
}

// processes answers with the list.
func (k *keeper) processes(nc ssh.NewChannel) {
	text, err := json.Marshal(k.history.list())
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, fmt.Sprint(err))
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	ch.Write(text)
	ch.Close()
}
