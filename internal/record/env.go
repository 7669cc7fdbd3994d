package record

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
)

// Env is the environment added since the sandbox was made, encrypted with its control key:
// no label has it in plain text, and whoever may inspect the container can decrypt it, as
// they can read the rest of the environment.
type Env struct {
	ID     string `json:"id"`
	Sealed []byte `json:"sealed"`
	// Removed are the names of variables that were taken away.
	Removed []string `json:"removed,omitempty"`
}

// NewEnv returns the environment that was added since the container was made, nil if none
// was, and the names of variables of it that were removed. Both include earlier changes.
func (r Sandbox) NewEnv() (added map[string]string, removed []string, err error) {
	c := r.Revision.Changes.Env
	if c == nil || c.ID == r.Settings.Env {
		return nil, nil, nil
	}
	added, err = r.AddedEnv()
	return added, c.Removed, err
}

// AddedEnv returns the environment that was added since the sandbox was made.
func (r Sandbox) AddedEnv() (map[string]string, error) {
	e := r.Revision.Changes.Env
	if e == nil {
		return nil, nil
	}
	aead, err := r.envCipher()
	if err != nil {
		return nil, err
	}
	if len(e.Sealed) < aead.NonceSize() {
		return nil, errDamagedEnv
	}
	at := aead.NonceSize()
	text, err := aead.Open(nil, e.Sealed[:at], e.Sealed[at:], []byte(e.ID))
	if err != nil {
		return nil, errDamagedEnv
	}
	var env map[string]string
	err = json.Unmarshal(text, &env)
	return env, err
}

var errDamagedEnv = errors.New("the record's environment is damaged")

// SealEnv is the inverse of AddedEnv. Removed names are not encrypted.
func (r Sandbox) SealEnv(env map[string]string, removed []string) (*Env, error) {
	aead, err := r.envCipher()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(env)
	if err != nil {
		return nil, err
	}
	e := &Env{ID: NewNonce(), Removed: removed, Sealed: make([]byte, aead.NonceSize())}
	rand.Read(e.Sealed)
	e.Sealed = aead.Seal(e.Sealed, e.Sealed, text, []byte(e.ID))
	return e, nil
}

func (r Sandbox) envCipher() (cipher.AEAD, error) {
	if len(r.ControlKey) == 0 {
		return nil, errors.New("the record has no control key")
	}
	key, err := hkdf.Key(sha256.New, r.ControlKey, nil, "agent-sandbox environment", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
