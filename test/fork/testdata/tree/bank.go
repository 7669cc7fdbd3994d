package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// hold keeps a file open in each directory that has no name any more, until it is killed: hold DIR...
func hold(dirs []string) error {
	for _, dir := range dirs {
		name := filepath.Join(dir, "deleted")
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	fmt.Println("holds")
	time.Sleep(time.Hour)
	return nil
}

// The bank is a database: accounts in several directories, whose sum never changes, and a journal.
// A transfer writes the old balances to the journal, then the new ones, and removes the journal. At
// no moment is there a state that audit can't repair, and in no mixture of two moments can it be
// relied upon.
const (
	accounts = 8 // in each directory
	opening  = 1000
)

type ledger struct {
	journal string
	files   []*os.File
}

func openLedger(journal string, dirs []string, flag int) (*ledger, error) {
	l := &ledger{journal: filepath.Join(journal, "journal")}
	for _, dir := range dirs {
		f, err := os.OpenFile(filepath.Join(dir, "accounts"), flag, 0o600)
		if err != nil {
			return nil, err
		}
		l.files = append(l.files, f)
	}
	return l, nil
}

func (l *ledger) read(account int) (int64, error) {
	var b [8]byte
	_, err := l.files[account/accounts].ReadAt(b[:], int64(account%accounts)*8)
	return int64(binary.LittleEndian.Uint64(b[:])), err
}

func (l *ledger) write(account int, balance int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(balance))
	_, err := l.files[account/accounts].WriteAt(b[:], int64(account%accounts)*8)
	return err
}

// bank makes transfers until it is killed: bank JOURNAL-DIR DIR...
func bank(args []string) error {
	l, err := openLedger(args[0], args[1:], os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	n := len(l.files) * accounts
	for i := range n {
		if err := l.write(i, opening); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		if err := l.transfer(rand.IntN(n), rand.IntN(n), rand.Int64N(50)); err != nil {
			return err
		}
		if i == 100 {
			fmt.Println("open")
		}
	}
}

func (l *ledger) transfer(from, to int, sum int64) error {
	if from == to {
		return nil
	}
	a, err := l.read(from)
	if err != nil {
		return err
	}
	b, err := l.read(to)
	if err != nil {
		return err
	}
	entry := make([]byte, 0, 32)
	for _, n := range []int64{int64(from), a, int64(to), b} {
		entry = binary.LittleEndian.AppendUint64(entry, uint64(n))
	}
	if err := os.WriteFile(l.journal+".new", entry, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(l.journal+".new", l.journal), l.write(from, a-sum), l.write(to, b+sum), os.Remove(l.journal))
}

// audit repairs what a transfer left and fails unless the sum is right: audit JOURNAL-DIR DIR...
func audit(args []string) error {
	l, err := openLedger(args[0], args[1:], os.O_RDWR)
	if err != nil {
		return err
	}
	entry, err := os.ReadFile(l.journal)
	if err == nil {
		if len(entry) != 32 {
			return io.ErrUnexpectedEOF
		}
		number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(entry[i*8:])) }
		err = errors.Join(l.write(int(number(0)), number(1)), l.write(int(number(2)), number(3)))
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	var sum int64
	for i := range len(l.files) * accounts {
		balance, err := l.read(i)
		if err != nil {
			return err
		}
		sum += balance
	}
	if want := int64(len(l.files) * accounts * opening); sum != want {
		return fmt.Errorf("the accounts have %d together, want %d", sum, want)
	}
	return nil
}
