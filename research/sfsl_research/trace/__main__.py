from sfsl_research.trace.report import main

if __name__ == "__main__":
    main()
