"""The kit controllers are made of: queue, controller, manager, leader election, events, finalizers."""
