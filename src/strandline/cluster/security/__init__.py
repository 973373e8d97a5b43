"""Security of listeners: TLS, authentication, certificates and what they say about their holders."""
