"""Which devices a run uses: what is there, what was asked for, what each rank must see. Never imports torch."""
