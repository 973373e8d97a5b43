// How sarama logs in: it speaks SCRAM's messages, and leaves their making to a library.

package main

import (
	"errors"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

type tokens string

func (t tokens) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func logIn(settings *sarama.Config) {
	shown := myLogin()
	if shown == nil {
		return
	}
	settings.Net.TLS.Enable = true
	settings.Net.TLS.Config = shown.tls()
	if shown.Mechanism == "" {
		return
	}
	settings.Net.SASL.Enable = true
	settings.Net.SASL.Mechanism = sarama.SASLMechanism(shown.Mechanism)
	settings.Net.SASL.User, settings.Net.SASL.Password = shown.User, shown.Secret
	switch shown.Mechanism {
	case "SCRAM-SHA-256":
		settings.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		settings.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA512} }
	case "OAUTHBEARER":
		settings.Net.SASL.TokenProvider = tokens(shown.Token)
	}
}

// Keeps the first refusal for the next poll; a group gets over everything else by itself.
func (m *member) note(err error) {
	for _, refusal := range []error{
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrSASLAuthenticationFailed,
	} {
		if errors.Is(err, refusal) {
			select {
			case m.refusals <- err:
			default:
			}
		}
	}
}
