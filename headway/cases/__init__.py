"""Cases: experiments and exercises that somebody reported, done again."""
