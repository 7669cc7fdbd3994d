package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// errLine is the error of ReadLine for a line that exceeds its limit.
var errLine = errors.New("line too long")

// ReadLine reads a line with its end, of at most limit bytes. At the end of the stream it returns
// the part of a line with the error.
func ReadLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errLine
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// text is a string that JSON gives back byte for byte. Arguments, paths and
// environment are bytes to Linux, and encoding/json would replace what is not UTF-8.
type text string

type rawText struct {
	Bytes []byte `json:"bytes"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(rawText{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw rawText
		if err := json.Unmarshal(b, &raw); err != nil {
			return err
		}
		*t = text(raw.Bytes)
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// plain is Exec without its methods; the fields of rawExec hide its own.
type plain Exec

type rawExec struct {
	plain
	ID   text   `json:"id,omitempty"`
	Args []text `json:"args"`
	Env  []text `json:"env,omitempty"`
	Dir  text   `json:"dir,omitempty"`
	User text   `json:"user,omitempty"`
}

// MarshalJSON writes a string that is not UTF-8 as {"bytes": base64}.
func (e Exec) MarshalJSON() ([]byte, error) {
	if e.utf8() {
		return json.Marshal(plain(e))
	}
	return json.Marshal(rawExec{
		plain: plain(e), ID: text(e.ID), Args: texts(e.Args), Env: texts(e.Env), Dir: text(e.Dir), User: text(e.User),
	})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Exec) UnmarshalJSON(b []byte) error {
	raw := rawExec{plain: plain(*e)}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*e = Exec(raw.plain)
	e.ID, e.Args, e.Env, e.Dir, e.User = string(raw.ID), strs(raw.Args), strs(raw.Env), string(raw.Dir), string(raw.User)
	return nil
}

func (e Exec) utf8() bool {
	for _, s := range [...]string{e.ID, e.Dir, e.User} {
		if !utf8.ValidString(s) {
			return false
		}
	}
	for _, list := range [...][]string{e.Args, e.Env} {
		for _, s := range list {
			if !utf8.ValidString(s) {
				return false
			}
		}
	}
	return true
}

func texts(in []string) []text {
	if in == nil {
		return nil
	}
	out := make([]text, len(in))
	for i, s := range in {
		out[i] = text(s)
	}
	return out
}

func strs(in []text) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return out
}

type plainSecret Secret

type rawSecret struct {
	plainSecret
	Headers map[string]text `json:"headers"`
}

// MarshalJSON writes a string that is not UTF-8 as {"bytes": base64}.
func (s Secret) MarshalJSON() ([]byte, error) {
	raw := rawSecret{plainSecret(s), make(map[string]text, len(s.Headers))}
	for name, value := range s.Headers {
		raw.Headers[name] = text(value)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Secret) UnmarshalJSON(b []byte) error {
	var raw rawSecret
	err := json.Unmarshal(b, &raw)
	*s = Secret(raw.plainSecret)
	s.Headers = make(map[string]string, len(raw.Headers))
	for name, value := range raw.Headers {
		s.Headers[name] = string(value)
	}
	return err
}

type plainHookRequest HookRequest

type rawHookRequest struct {
	plainHookRequest
	URL    text              `json:"url"`
	Header map[string][]text `json:"header,omitempty"`
}

// MarshalJSON writes a string that is not UTF-8 as {"bytes": base64}.
func (r HookRequest) MarshalJSON() ([]byte, error) {
	return json.Marshal(rawHookRequest{plainHookRequest(r), text(r.URL), headerTexts(r.Header)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *HookRequest) UnmarshalJSON(b []byte) error {
	var raw rawHookRequest
	err := json.Unmarshal(b, &raw)
	*r = HookRequest(raw.plainHookRequest)
	r.URL, r.Header = string(raw.URL), headerStrings(raw.Header)
	return err
}

type plainHookReply HookReply

type rawHookReply struct {
	plainHookReply
	Header map[string][]text `json:"header,omitempty"`
}

// MarshalJSON writes a string that is not UTF-8 as {"bytes": base64}.
func (r HookReply) MarshalJSON() ([]byte, error) {
	return json.Marshal(rawHookReply{plainHookReply(r), headerTexts(r.Header)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *HookReply) UnmarshalJSON(b []byte) error {
	var raw rawHookReply
	err := json.Unmarshal(b, &raw)
	*r = HookReply(raw.plainHookReply)
	r.Header = headerStrings(raw.Header)
	return err
}

func headerTexts(in map[string][]string) map[string][]text {
	out := make(map[string][]text, len(in))
	for name, values := range in {
		out[name] = texts(values)
	}
	return out
}

func headerStrings(in map[string][]text) map[string][]string {
	if in == nil {
		return nil
	}
	out := make(map[string][]string, len(in))
	for name, values := range in {
		out[name] = strs(values)
	}
	return out
}
