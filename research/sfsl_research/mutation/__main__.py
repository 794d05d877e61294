from sfsl_research.mutation.gate import main

if __name__ == "__main__":
    main()
