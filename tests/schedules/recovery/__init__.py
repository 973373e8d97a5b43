"""After a crash: who may lead, played on whole nodes with clients (schedules 45, 46, 48, 53 and 56)."""
