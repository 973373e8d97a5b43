package main

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitSystem publishes to a durable quorum queue with publisher confirms.
type rabbitSystem struct {
	connection *amqp.Connection
	channel    *amqp.Channel
	queue      string
}

func connectRabbit(o options) (system, error) {
	// A node listens when it has joined its cluster; a queue made earlier would have fewer copies.
	var last *amqp.Connection
	for _, address := range o.addresses {
		connection, err := amqp.Dial("amqp://guest:guest@" + address + "/")
		if last != nil {
			last.Close()
		}
		if err != nil {
			return nil, err
		}
		last = connection
	}
	return &rabbitSystem{last, nil, ""}, nil
}

func (s *rabbitSystem) create(_ context.Context, name string) error {
	channel, err := s.connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	s.channel, s.queue = channel, name
	three := amqp.Table{"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
	_, err = channel.QueueDeclare(name, true, false, false, false, three)
	return err
}

func (s *rabbitSystem) send(data []byte) (waiter, error) {
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: data}
	confirmation, err := s.channel.PublishWithDeferredConfirm("", s.queue, true, false, message)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		acked, err := confirmation.WaitContext(ctx)
		if err == nil && !acked {
			err = errors.New("the queue refused the record")
		}
		return err
	}, nil
}

func (s *rabbitSystem) close() { s.connection.Close() }
