"""What is kept of budgets: ledgers, plans and statements of searches, and privacy cards."""
