"""The grader in other people's programs: trainers and agents. Each file is for one; nothing else imports them."""
