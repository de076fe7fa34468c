"""What the planner chooses and predicts, beside what is measured."""
