"""Kits: what goes between a log and a framework, or the types of a program. Each is a module of its own.

``typed`` has logs of values of a type, ``fastapi`` logs in web applications, ``taskiq`` a queue of tasks. No
module of walstore imports a kit, and no kit another.
"""
