"""Masked sums in a real federation: :mod:`evenhand.secure` over Flower's messages.

| module      | side   | what it has                                                       |
|-------------|--------|-------------------------------------------------------------------|
| told        | both   | what a message says about masks                                   |
| owner       | node   | keys, trusted keys and the ledger, from the owner's settings      |
| work        | node   | masks the reply to a task                                         |
| count       | both   | numbers of samples as a masked sum, and weights by hidden sizes   |
| holder      | node   | opens boxes; loads no torch                                       |
| layout      | both   | trees of tensors as forms of the masked vector                    |
| exchange    | server | one exchange: tasks, the sum, the second message                  |
| pending     | server | sums that wait to be opened, on disk                              |
| sums        | server | checks of a sum                                                   |
| counting    | server | asks for the sum of the clients' counts                           |
| totals      | server | what is known of clients whose own counts are hidden              |
| refusing    | server | what a run with masked sums cannot have, and the way out          |
"""
