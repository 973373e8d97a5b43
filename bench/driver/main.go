// Load for the peers that do not speak Kafka's protocol: records with acks, counted and timed.
//
// One operation a run, its result as one JSON object. Every operation is bounded in count and in time.

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// A waiter returns once its record is acknowledged.
type waiter func(context.Context) error

// A system keeps records in streams or queues.
type system interface {
	// create makes one with three copies, or finds it; what is sent goes there.
	create(ctx context.Context, name string) error
	// send hands one record over and does not wait for its ack.
	send(data []byte) (waiter, error)
	close()
}

type options struct {
	system    string
	addresses []string
	name      string
	size      int
	count     int
	rate      int
	window    int
	limit     time.Duration
}

const (
	pause      = 10 * time.Millisecond
	oneAttempt = 2 * time.Second
	grace      = 30 * time.Second
	warmUp     = 2 * time.Second
)

func connect(o options) (system, error) {
	if o.system == "nats" {
		return connectNats(o)
	}
	return connectRabbit(o)
}

// first tries until one record in a new stream or queue of three copies is acknowledged.
func first(ctx context.Context, o options) (any, error) {
	for {
		err := attempt(ctx, o)
		if err == nil {
			return map[string]any{}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no ack in time: %w", err)
		case <-time.After(pause):
		}
	}
}

func attempt(ctx context.Context, o options) error {
	s, err := connect(o)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, oneAttempt)
	defer cancel()
	if err := s.create(ctx, o.name); err != nil {
		return err
	}
	acked, err := s.send([]byte("x"))
	if err != nil {
		return err
	}
	return acked(ctx)
}

// prepared is a connection whose stream or queue is made.
func prepared(ctx context.Context, o options) (system, error) {
	s, err := connect(o)
	if err != nil {
		return nil, err
	}
	if err := s.create(ctx, o.name); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// load sends as fast as a window of unacknowledged records allows, until the count or the time is reached.
func load(ctx context.Context, o options) (any, error) {
	s, err := prepared(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	data := make([]byte, o.size)
	waiting := make(chan waiter, o.window)
	outcome := make(chan error, 1)
	go func() {
		var failed error
		for acked := range waiting {
			if err := acked(ctx); err != nil && failed == nil {
				failed = err
			}
		}
		outcome <- failed
	}()
	began := time.Now()
	sent := 0
	for ; sent < o.count && time.Since(began) < o.limit; sent++ {
		acked, err := s.send(data)
		if err != nil {
			return nil, err
		}
		waiting <- acked
	}
	close(waiting)
	if err := <-outcome; err != nil {
		return nil, err
	}
	return map[string]any{"acked": sent, "seconds": time.Since(began).Seconds()}, nil
}

// paced sends single records at a steady rate, whether or not earlier ones are acknowledged.
func paced(ctx context.Context, o options) (any, error) {
	s, err := prepared(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	data := make([]byte, o.size)
	total := int(float64(o.rate) * (o.limit + warmUp).Seconds())
	took := make([]time.Duration, total)
	failures := make(chan error, total)
	var pending sync.WaitGroup
	began := time.Now()
	for number := range total {
		time.Sleep(time.Until(began.Add(time.Duration(number) * time.Second / time.Duration(o.rate))))
		at := time.Now()
		acked, err := s.send(data)
		if err != nil {
			return nil, err
		}
		pending.Go(func() {
			if err := acked(ctx); err != nil {
				failures <- err
			}
			took[number] = time.Since(at)
		})
	}
	pending.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return nil, err
	}
	return percentiles(took[int(float64(o.rate)*warmUp.Seconds()):]), nil
}

// single sends one record after the other, each when the one before it is acknowledged.
func single(ctx context.Context, o options) (any, error) {
	s, err := prepared(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	data := make([]byte, o.size)
	var took []time.Duration
	began := time.Now()
	for time.Since(began) < o.limit+warmUp {
		at := time.Now()
		acked, err := s.send(data)
		if err != nil {
			return nil, err
		}
		if err := acked(ctx); err != nil {
			return nil, err
		}
		if time.Since(began) > warmUp {
			took = append(took, time.Since(at))
		}
	}
	return percentiles(took), nil
}

func percentiles(took []time.Duration) map[string]any {
	sort.Slice(took, func(a, b int) bool { return took[a] < took[b] })
	at := func(part float64) float64 { return took[int(float64(len(took))*part)].Seconds() * 1000 }
	return map[string]any{"records": len(took), "p50_ms": at(0.5), "p99_ms": at(0.99)}
}

var operations = map[string]func(context.Context, options) (any, error){
	"first": first, "load": load, "paced": paced, "single": single,
}

func main() {
	var o options
	flag.StringVar(&o.system, "system", "nats", "nats or rabbitmq")
	addresses := flag.String("addresses", "", "host:port, separated by commas")
	operation := flag.String("operation", "first", "first, load, paced or single")
	flag.StringVar(&o.name, "name", "bench", "of the stream or queue")
	flag.IntVar(&o.size, "size", 100, "bytes of a record")
	flag.IntVar(&o.count, "count", 1000, "records at most")
	flag.IntVar(&o.rate, "rate", 200, "records a second")
	flag.IntVar(&o.window, "window", 4096, "records that may wait for their acks")
	flag.DurationVar(&o.limit, "limit", 10*time.Second, "how long to send")
	flag.Parse()
	o.addresses = strings.Split(*addresses, ",")
	ctx, cancel := context.WithTimeout(context.Background(), o.limit+warmUp+grace)
	defer cancel()
	result, err := operations[*operation](ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(result)
}
