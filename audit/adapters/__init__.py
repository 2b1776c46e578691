"""What this installation rests on, asked whether it is there."""
