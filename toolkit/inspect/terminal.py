"""pending"""
def terminal(f): return f
def print_report(r, t): pass
