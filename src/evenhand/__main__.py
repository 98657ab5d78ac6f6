from evenhand.cli import main

main()
