"""Who may come in: TLS of the listeners, and what a certificate says about its holder."""
