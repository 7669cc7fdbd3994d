package guest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// duplex is a stream whose directions end independently, such as an SSH channel or an
// exec's stdio. Read and Write may block; Close unblocks them.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// closeLinger bounds how long Close goes on to send data written before.
const closeLinger = 10 * time.Second

// NetConn adds deadlines and a buffer in each direction to a stream, as a socket has them.
// The result owns rw; its Close waits until rw is closed.
func NetConn(rw duplex, local, remote net.Addr) net.Conn {
	c := newConn(rw, local, remote)
	var done sync.WaitGroup
	done.Go(c.emptyOut)
	done.Go(func() {
		c.fillIn(func(err error) error { return err })
		c.out.abandon(syscall.EPIPE)
	})
	return &waiting{c, &done}
}

// waiting is a conn whose Close waits for its goroutines.
type waiting struct {
	*conn
	done *sync.WaitGroup
}

func (w *waiting) Close() error {
	err := w.conn.Close()
	w.done.Wait()
	return err
}

// conn is a net.Conn over a duplex. One goroutine runs fillIn, another emptyOut.
type conn struct {
	rw            duplex
	local, remote net.Addr
	in, out       queue
	writing       sync.Mutex // held by Write, so that concurrent writes don't mix
	closing       sync.Once
	inDone        chan struct{} // closed when fillIn has returned
	outDone       chan struct{} // closed when emptyOut has returned
}

func newConn(rw duplex, local, remote net.Addr) *conn {
	c := &conn{rw: rw, local: local, remote: remote, inDone: make(chan struct{}), outDone: make(chan struct{})}
	c.in.cond.L, c.out.cond.L = &c.in.mu, &c.out.mu
	return c
}

// fillIn reads the stream to its end. explain translates its last error.
func (c *conn) fillIn(explain func(error) error) {
	defer close(c.inDone)
	for {
		b := c.in.room()
		if b == nil {
			return
		}
		n, err := c.rw.Read(b)
		c.in.filled(n)
		if err != nil {
			c.in.end(explain(err))
			return
		}
	}
}

// emptyOut sends the data of Write until Close or CloseWrite, then closes the stream alike.
func (c *conn) emptyOut() {
	defer close(c.outDone)
	for {
		b := c.out.data()
		if b == nil {
			break
		}
		n, err := c.rw.Write(b[:min(len(b), wire.PacketData)])
		c.out.emptied(n)
		if err != nil {
			c.out.abandon(syscall.EPIPE)
			break
		}
	}
	c.rw.CloseWrite()
	c.in.mu.Lock()
	closed := c.in.gone != nil
	c.in.mu.Unlock()
	if closed {
		c.rw.Close()
	}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.get(p)
	return n, c.fail("read", err)
}

func (c *conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.out.put(p)
	return n, c.fail("write", err)
}

func (c *conn) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: c.remote.Network(), Source: c.local, Addr: c.remote, Err: err}
}

// CloseWrite ends the data that the other side gets; reading goes on.
func (c *conn) CloseWrite() error {
	return c.fail("close", c.out.end(syscall.EPIPE))
}

// Close ends the connection. What was written before is still sent, in the
// background and for ten seconds at most.
func (c *conn) Close() error {
	err := error(net.ErrClosed)
	c.closing.Do(func() {
		c.in.abandon(net.ErrClosed)
		c.out.end(net.ErrClosed)
		linger := time.AfterFunc(closeLinger, func() {
			c.out.abandon(net.ErrClosed)
			c.rw.Close()
		})
		select {
		case <-c.outDone:
			// emptyOut may have ended after a CloseWrite, and has not closed rw.
			linger.Stop()
			c.rw.Close()
		default:
		}
		err = nil
	})
	return c.fail("close", err)
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.fail("set", c.in.deadline(t)) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.fail("set", c.out.deadline(t)) }

// queueSize is the size of the buffer in each direction, beside the channel's own window.
const queueSize = 64 << 10

// queue is a bounded FIFO of bytes. One side is the user, who calls get or put with a
// deadline. The other is a goroutine that fills or empties parts of the buffer in place,
// without the lock: the user does not touch them meanwhile.
type queue struct {
	mu      sync.Mutex
	cond    sync.Cond
	buf     []byte // a ring, allocated at first use
	head, n int
	ended   error // no more data is put in
	gone    error // no more data is taken out; the rest is dropped
	lapsed  bool  // the user's deadline has passed
	timer   *time.Timer
	setting int // counts deadlines, so that an old timer does nothing
}

// get returns available data, or waits for it. The user calls it.
func (q *queue) get(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.gone != nil:
			return 0, q.gone
		case q.lapsed:
			return 0, os.ErrDeadlineExceeded
		case q.n > 0 || len(p) == 0:
			n := 0
			for n < len(p) && q.n > 0 {
				k := copy(p[n:], q.front())
				q.drop(k)
				n += k
			}
			q.cond.Broadcast()
			return n, nil
		case q.ended != nil:
			return 0, q.ended
		}
		q.cond.Wait()
	}
}

// put adds all of p, and waits for room. The user calls it.
func (q *queue) put(p []byte) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.ended != nil:
			return n, q.ended
		case q.gone != nil:
			return n, q.gone
		case q.lapsed:
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		case q.n < queueSize:
			k := copy(q.back(), p[n:])
			q.n += k
			n += k
			q.cond.Broadcast()
			continue
		}
		q.cond.Wait()
	}
}

// room waits for free space in the buffer; nil means that the queue was abandoned.
func (q *queue) room() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.gone == nil && q.n == queueSize {
		q.cond.Wait()
	}
	if q.gone != nil {
		return nil
	}
	return q.back()
}

// filled adds the first n bytes of the last room to the data.
func (q *queue) filled(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n += n
	q.cond.Broadcast()
}

// data waits for data; nil means that there will be none.
func (q *queue) data() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.gone == nil && q.ended == nil && q.n == 0 {
		q.cond.Wait()
	}
	if q.gone != nil || q.n == 0 {
		return nil
	}
	return q.front()
}

// emptied drops n bytes of the last data.
func (q *queue) emptied(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(n)
	q.cond.Broadcast()
}

// end stops put; why is the error after the data. Only net.ErrClosed replaces an earlier
// one.
func (q *queue) end(why error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.ended
	if was == nil || why == net.ErrClosed {
		q.ended = why
	}
	q.cond.Broadcast()
	if was == net.ErrClosed {
		return was
	}
	return nil
}

// abandon stops get and put, and drops the data that is left.
func (q *queue) abandon(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone == nil || why == net.ErrClosed {
		q.gone = why
	}
	if q.timer != nil {
		q.timer.Stop()
	}
	q.cond.Broadcast()
}

func (q *queue) deadline(t time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone == net.ErrClosed || q.ended == net.ErrClosed {
		return net.ErrClosed
	}
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	q.setting++
	q.lapsed = false
	if !t.IsZero() {
		if left := time.Until(t); left <= 0 {
			q.lapsed = true
		} else {
			mine := q.setting
			q.timer = time.AfterFunc(left, func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				if q.setting == mine {
					q.lapsed = true
					q.cond.Broadcast()
				}
			})
		}
	}
	q.cond.Broadcast()
	return nil
}

// front returns the longest contiguous data, back the longest contiguous free space.
func (q *queue) front() []byte {
	return q.buf[q.head:min(q.head+q.n, queueSize)]
}

func (q *queue) back() []byte {
	if q.buf == nil {
		q.buf = make([]byte, queueSize)
	}
	start := q.head + q.n
	if start >= queueSize {
		return q.buf[start-queueSize : q.head]
	}
	return q.buf[start:]
}

func (q *queue) drop(n int) {
	q.head = (q.head + n) % queueSize
	q.n -= n
}
