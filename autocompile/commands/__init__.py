"""What check, doctor, verify and others do beside tune."""
