"""Processes and devices: how processes connect and agree, and how arrays are divided over devices."""
