package main

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsSystem publishes to a file stream of JetStream with three replicas.
type natsSystem struct {
	connection *nats.Conn
	streams    jetstream.JetStream
	subject    string
}

func connectNats(o options) (system, error) {
	connection, err := nats.Connect("nats://" + strings.Join(o.addresses, ",nats://"))
	if err != nil {
		return nil, err
	}
	// The window is kept by the caller; at the client's own limit a publish would stall for 200 ms and fail.
	streams, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(2*o.window+1000))
	if err != nil {
		connection.Close()
		return nil, err
	}
	return &natsSystem{connection, streams, ""}, nil
}

func (s *natsSystem) create(ctx context.Context, name string) error {
	s.subject = name
	_, err := s.streams.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, Replicas: 3,
	})
	return err
}

func (s *natsSystem) send(data []byte) (waiter, error) {
	future, err := s.streams.PublishAsync(s.subject, data)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		select {
		case <-future.Ok():
			return nil
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func (s *natsSystem) close() { s.connection.Close() }
