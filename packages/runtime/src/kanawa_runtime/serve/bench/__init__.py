"""Measuring a server from outside: requests that come whether or not earlier ones were answered."""
