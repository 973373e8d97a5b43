"""Brokers that ask: clients log in by SCRAM, ACLs say what they may do, quotas what they may take.

The plain clients and the services of such a run are the user `client`, whose rights stay. Beside them one process has

- an admin, who gives and takes rights of the users `ann`, `ben`, ..., rotates and removes their passwords, sets quotas;
- these users, who log in, write and read, with what they may have and with what they have no more;
- `guest`, who logs in and has no right, and intruders, who guess passwords.

What must hold: `checkers.rights`.
"""
